//! Words already seen and their ids, in two tables of bounded size: short words inline, long ones hashed.

use std::collections::HashMap;

/// Longest word whose bytes fit into a slot's key.
pub const SHORT: usize = 15;
/// Longer words are not kept.
const LONGEST: usize = 128;

/// An id as it is stored in shards.
pub trait Id: Copy + Default + PartialEq + Send + Sync + 'static {
    /// Ids that a slot holds beside its 16-byte key in 32 bytes.
    type Inline: Copy + Default + AsRef<[Self]> + AsMut<[Self]> + Send + Sync;
    fn from_u32(id: u32) -> Self;
    fn to_u32(self) -> u32;
    /// Appends `ids` in little-endian order.
    fn extend_bytes(ids: &[Self], bytes: &mut Vec<u8>);
    /// The reverse; bytes that do not fill an id are left out.
    fn extend_from_bytes(bytes: &[u8], ids: &mut Vec<Self>);
}

impl Id for u16 {
    type Inline = [u16; 7];
    fn from_u32(id: u32) -> Self {
        id as u16
    }
    fn to_u32(self) -> u32 {
        u32::from(self)
    }
    fn extend_bytes(ids: &[Self], bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.resize(start + 2 * ids.len(), 0);
        for (id, place) in ids.iter().zip(bytes[start..].chunks_exact_mut(2)) {
            place.copy_from_slice(&id.to_le_bytes());
        }
    }
    fn extend_from_bytes(bytes: &[u8], ids: &mut Vec<Self>) {
        ids.extend(bytes.chunks_exact(2).map(|b| Self::from_le_bytes([b[0], b[1]])));
    }
}

impl Id for u32 {
    type Inline = [u32; 3];
    fn from_u32(id: u32) -> Self {
        id
    }
    fn to_u32(self) -> u32 {
        self
    }
    fn extend_bytes(ids: &[Self], bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.resize(start + 4 * ids.len(), 0);
        for (id, place) in ids.iter().zip(bytes[start..].chunks_exact_mut(4)) {
            place.copy_from_slice(&id.to_le_bytes());
        }
    }
    fn extend_from_bytes(bytes: &[u8], ids: &mut Vec<Self>) {
        ids.extend(bytes.chunks_exact(4).map(|b| Self::from_le_bytes([b[0], b[1], b[2], b[3]])));
    }
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
struct Slot<T: Id> {
    /// The word's bytes, zero padded, its length in the last byte; all zero when free.
    key: [u64; 2],
    ids: T::Inline,
    count: T,
}

pub struct WordCache<T: Id> {
    slots: Vec<Slot<T>>,
    free: usize,
    long: HashMap<Box<[u8]>, Box<[T]>>,
    long_limit: usize,
}

/// A short word as a key.
#[inline]
pub fn key_of(word: &[u8]) -> [u64; 2] {
    let mut bytes = [0u8; 16];
    bytes[..word.len()].copy_from_slice(word);
    bytes[15] = word.len() as u8;
    let key = u128::from_le_bytes(bytes);
    [key as u64, (key >> 64) as u64]
}

#[inline]
fn hash(key: [u64; 2]) -> u64 {
    let mixed = (key[0] ^ key[1].rotate_left(29)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ key[1]).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 20
}

impl<T: Id> WordCache<T> {
    /// A cache of `2^bits` short words; 32 bytes each.
    pub fn new(bits: u32) -> Self {
        let num_slots = 1usize << bits;
        // one slot in four stays free so that a search ends soon
        Self {
            slots: vec![Slot::default(); num_slots],
            free: num_slots / 4 * 3,
            long: HashMap::new(),
            long_limit: num_slots / 16,
        }
    }

    /// Ids of a short word.
    #[inline]
    pub fn get(&self, key: [u64; 2]) -> Option<&[T]> {
        let mask = self.slots.len() - 1;
        let mut at = hash(key) as usize & mask;
        loop {
            let slot = &self.slots[at];
            if slot.key == key {
                return Some(&slot.ids.as_ref()[..slot.count.to_u32() as usize]);
            }
            if slot.key[1] == 0 {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    /// Keeps a short word that `get` did not find, if there is room for it.
    pub fn insert(&mut self, key: [u64; 2], ids: &[T]) {
        let mut slot = Slot { key, ids: T::Inline::default(), count: T::from_u32(ids.len() as u32) };
        if self.free == 0 || ids.len() > slot.ids.as_ref().len() {
            return;
        }
        slot.ids.as_mut()[..ids.len()].copy_from_slice(ids);
        let mask = self.slots.len() - 1;
        let mut at = hash(key) as usize & mask;
        while self.slots[at].key[1] != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = slot;
        self.free -= 1;
    }

    pub fn get_long(&self, word: &[u8]) -> Option<&[T]> {
        self.long.get(word).map(|ids| &**ids)
    }

    pub fn insert_long(&mut self, word: &[u8], ids: &[T]) {
        if word.len() <= LONGEST && self.long.len() < self.long_limit {
            self.long.insert(word.into(), ids.into());
        }
    }
}
