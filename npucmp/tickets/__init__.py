"""Tickets: a report as one page or as an archive for a vendor's engineers."""
