//! What each view says of small journals made by hand, and what holds for every journal.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are outside of #[test] functions"
)]

mod claims;
mod correlation;
mod diff;
mod health;
mod journal;
mod lies;
mod os;
mod props;
mod summary;
mod surface;
mod timeline;
