"""`python -m decodebench`."""

from decodebench.cli import main

main()
