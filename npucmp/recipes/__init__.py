"""One recipe per detection, each a page: paths and options in, a Report out.

The library offers them, the commands call them.
"""
