"""One file for each peer: what its documentation has a user write, and where it says what it found."""
