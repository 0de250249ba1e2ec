"""Writers of the corpus: what a run left behind → a dump on disk, one module per format."""
