//! Kademlia that answers in time.

mod contacts;
pub mod logic;
mod store;

pub use contacts::{CONTACTS_FILE_MAX, ContactsFault, load_contacts, save_contacts};
pub use logic::{Contact, Key};
pub use store::{Clock, Flush, Opened, Rewrite, Store, StoreSettings};
