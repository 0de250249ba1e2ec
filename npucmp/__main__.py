"""python -m npucmp."""

from npucmp.cli import main

main()
