"""What lies in a directory of the ancestor's: its segments, and which codec a directory is in (`segments.codec_of`)."""
