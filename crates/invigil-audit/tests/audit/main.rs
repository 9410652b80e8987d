//! What each view says of small journals made by hand, and what holds for every journal.

mod correlation;
mod diff;
mod health;
mod journal;
mod props;
mod summary;
mod surface;
