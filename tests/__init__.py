"""The test suite; tests/README.md says which test runs where."""
