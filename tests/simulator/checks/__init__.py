"""The model and the histories that a run is checked against."""
