//! Chance that can be had again: what is drawn follows from one number, which is printed.

use crate::stack::random_name;

/// Numbers that follow from a seed (SplitMix64).
pub struct Chance(u64);

impl Chance {
    /// From `CHAOS_SEED`, or new. It is printed, since a failure is looked into with the same one.
    ///
    /// # Panics
    /// When `CHAOS_SEED` is no number.
    #[allow(clippy::new_without_default, reason = "two of them are not the same")]
    pub fn new() -> Self {
        let seed = std::env::var("CHAOS_SEED").ok().map(|text| text.parse().expect("CHAOS_SEED is a number"));
        let seed = seed.unwrap_or_else(|| {
            let name = random_name("");
            u64::from_str_radix(name.trim_start_matches('-'), 16).expect("the name is hexadecimal")
        });
        println!("CHAOS_SEED={seed}");
        Self(seed)
    }

    /// The next one, less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
