//! What works on this machine, found out by doing it.
