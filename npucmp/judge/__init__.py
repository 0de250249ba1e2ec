"""Make a Finding of each Measurement: compare one tensor pair with the limit of the precision that its runs worked
in."""
