"""`python -m tranlog.compiled`: say which form of the hot modules serves here, and why."""

from tranlog.compiled import form

if __name__ == "__main__":
    print(form())
