"""`gpulayer report`: one HTML page of what runs logged, which opens from disk with no network."""
