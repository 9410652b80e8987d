//! What agents say, beside what was seen: small journals made by hand.
