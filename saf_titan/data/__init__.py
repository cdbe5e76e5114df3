"""The data of a run as loaders: token files, generated sequences, files of rows; and their check before the start."""
