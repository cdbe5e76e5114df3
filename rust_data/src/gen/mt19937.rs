//! NumPy's legacy random stream (`np.random.seed` and friends): the Mersenne Twister and the draws on it.

const N: usize = 624;
const M: usize = 397;

pub struct Mt19937 {
    state: [u32; N],
    next: usize,
}

impl Mt19937 {
    /// Returns the state after `np.random.seed(seed)`.
    pub fn new(seed: u32) -> Self {
        let mut state = [seed; N];
        for i in 1..N {
            let last = state[i - 1];
            state[i] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self { state, next: N }
    }

    fn twist(&mut self) {
        for i in 0..N {
            let joined = self.state[i] & 0x8000_0000 | self.state[(i + 1) % N] & 0x7FFF_FFFF;
            let twisted = (joined >> 1) ^ if joined & 1 == 1 { 0x9908_B0DF } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ twisted;
        }
        self.next = 0;
    }

    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.twist();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= word << 7 & 0x9D2C_5680;
        word ^= word << 15 & 0xEFC6_0000;
        word ^ word >> 18
    }

    /// Does what `np.random.random_sample` does: a number in [0, 1) from 53 bits of two words.
    pub fn unit(&mut self) -> f64 {
        let (high, low) = (self.next_u32() >> 5, self.next_u32() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }

    /// Draws a number in `0 ..= max`: masked words are drawn until one is in the range.
    #[inline]
    fn at_most(&mut self, max: u32) -> u32 {
        let mask = u32::MAX >> max.leading_zeros().min(31);
        loop {
            let word = self.next_u32() & mask;
            if word <= max {
                return word;
            }
        }
    }

    /// Does what `np.random.permutation(order.len())` does.
    pub fn permutation(&mut self, order: &mut [u32]) {
        for (i, place) in order.iter_mut().enumerate() {
            *place = i as u32;
        }
        for i in (1..order.len()).rev() {
            order.swap(i, self.at_most(i as u32) as usize);
        }
    }

    /// Does what `np.random.choice(len(weights), count, replace=False, p=weights)` does. `weights` is overwritten.
    pub fn choice(&mut self, weights: &mut [f64], count: usize) -> Vec<u32> {
        let mut found: Vec<u32> = Vec::with_capacity(count);
        while found.len() < count {
            let draws: Vec<f64> = (found.len()..count).map(|_| self.unit()).collect();
            for &taken in &found {
                weights[taken as usize] = 0.0;
            }
            let mut sum = 0.0;
            let mut cumulated: Vec<f64> = weights
                .iter()
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect();
            cumulated.iter_mut().for_each(|value| *value /= sum);
            let before = found.len();
            for draw in draws {
                let place = cumulated.partition_point(|&value| value <= draw) as u32;
                // keep the first occurrence of each place, in the order of the draws
                if !found[before..].contains(&place) {
                    found.push(place);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_words_are_those_of_the_reference() {
        let mut random = Mt19937::new(5489);
        assert_eq!([random.next_u32(), random.next_u32()], [3_499_211_612, 581_869_302]);
        let mut random = Mt19937::new(5489);
        let last = (0..10_000).map(|_| random.next_u32()).last();
        assert_eq!(last, Some(4_123_659_995));
    }
}
