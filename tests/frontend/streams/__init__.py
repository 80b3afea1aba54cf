"""Tests of streams behind all protocols."""
