"""The apps of the phone, one file each."""
