"""The status of a pipeline: `gathering` reads it, `status` is the model, `view` the ancestor's form; both are pure."""
