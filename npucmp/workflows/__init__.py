"""One workflow per detection, each a page: paths and options in, a result out.

The library offers them, the commands call them.
"""
