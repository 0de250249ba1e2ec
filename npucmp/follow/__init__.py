"""Follow: examine the steps of a run that is still going."""
