"""The usage lake and the tables computed from it: upload, months, days, live view."""
