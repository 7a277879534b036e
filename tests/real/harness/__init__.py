"""The real parts that the tests stand on, and the words the tests are written in."""
