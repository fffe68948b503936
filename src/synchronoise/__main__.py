"""`python -m synchronoise` is the command `synchronoise`."""

from synchronoise.cli import main

if __name__ == "__main__":
    main()
