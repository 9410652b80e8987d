//! Placeholder.
use invigil_schema::Event;
use std::borrow::Cow;
/// x
pub struct Redactor;
impl Redactor {
    /// x
    pub fn new(_: [u8; 32]) -> Self {
        Redactor
    }
    /// x
    pub fn event<'a>(&self, e: &'a Event) -> Cow<'a, Event> {
        Cow::Borrowed(e)
    }
}
