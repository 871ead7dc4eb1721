"""The version of this program; the build reads it from here."""

VERSION = "0.1.0"
