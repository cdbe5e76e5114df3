//! The two widths of ids, and the pairs of ids that merge.

/// A merge: the ids of the left and the right token, and of the token that they make. A token's id is its rank, and the
/// merge that makes the lowest id comes first.
pub type Pair = (u32, u32, u32);

/// An id as it is stored in shards: `u16` where the vocabulary fits it, else `u32`.
pub trait Id: Copy + Default + Ord + Send + Sync + 'static {
    /// 16 bytes of ids. The last id is the count of the others that are in use.
    type Packed: Copy + Default + AsRef<[Self]> + AsMut<[Self]> + Send + Sync;
    /// Number of ids in `Packed`, the count included.
    const PACKED: usize;
    /// Means "no id"; no token has this id.
    const NONE: Self;

    /// Puts two numbers into the place of ids, with a count of zero.
    fn pack_range(range: [u32; 2]) -> Self::Packed;
    fn unpack_range(packed: &Self::Packed) -> [u32; 2];

    fn from_u32(id: u32) -> Self;
    fn to_u32(self) -> u32;
    /// Appends `ids` in little-endian order.
    fn extend_bytes(ids: &[Self], bytes: &mut Vec<u8>);
    /// Appends the ids in `bytes`. Bytes at the end that do not fill an id are ignored.
    fn extend_from_bytes(bytes: &[u8], ids: &mut Vec<Self>);
}

macro_rules! impl_id {
    ($int:ty, $packed:literal, $pack:expr, $unpack:expr) => {
        impl Id for $int {
            type Packed = [$int; $packed];
            const PACKED: usize = $packed;
            const NONE: Self = <$int>::MAX;

            fn pack_range([start, end]: [u32; 2]) -> Self::Packed {
                $pack(start, end)
            }

            fn unpack_range(packed: &Self::Packed) -> [u32; 2] {
                $unpack(packed)
            }

            #[inline]
            fn from_u32(id: u32) -> Self {
                id as $int
            }

            #[inline]
            fn to_u32(self) -> u32 {
                u32::from(self)
            }

            fn extend_bytes(ids: &[Self], bytes: &mut Vec<u8>) {
                let start = bytes.len();
                bytes.resize(start + size_of_val(ids), 0);
                for (id, place) in ids.iter().zip(bytes[start..].chunks_exact_mut(size_of::<Self>())) {
                    place.copy_from_slice(&id.to_le_bytes());
                }
            }

            fn extend_from_bytes(bytes: &[u8], ids: &mut Vec<Self>) {
                let (whole, _) = bytes.as_chunks();
                ids.extend(whole.iter().map(|&id| Self::from_le_bytes(id)));
            }
        }
    };
}

impl_id!(
    u16,
    8,
    |start: u32, end: u32| [start as u16, (start >> 16) as u16, end as u16, (end >> 16) as u16, 0, 0, 0, 0],
    |packed: &[u16; 8]| [0, 2].map(|i| u32::from(packed[i]) | u32::from(packed[i + 1]) << 16)
);
impl_id!(u32, 4, |start, end| [start, end, 0, 0], |packed: &[u32; 4]| [packed[0], packed[1]]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let ids = [0u16, 1, 256, 50_256, 65_535];
        let (mut bytes, mut back) = (Vec::new(), Vec::new());
        u16::extend_bytes(&ids, &mut bytes);
        assert_eq!(bytes[..6], [0, 0, 1, 0, 0, 1]);
        u16::extend_from_bytes(&bytes, &mut back);
        assert_eq!(back, ids);
    }
}
