"""The members of the detector, one file each."""
