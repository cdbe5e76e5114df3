//! Weighted draws in constant time: the alias method (Walker 1977) with the tables of Vose (1991), in whole numbers, so
//! that every machine draws the same.

use std::hint::select_unpredictable;

/// A table of cells of equal weight, each of which is shared by at most two places.
#[derive(Clone, Default)]
pub struct Alias {
    cells: Vec<Cell>,
    /// Weight of all places. It is also the weight of a cell, because each place counts `cells.len()` times in the
    /// table.
    total: u64,
    /// While the table is made: the places with less weight than a cell, and those with more.
    light: Vec<(u32, u128)>,
    heavy: Vec<(u32, u128)>,
}

#[derive(Clone, Copy)]
struct Cell {
    /// The part of the cell that belongs to its owner.
    cut: u64,
    owner: u32,
    other: u32,
}

impl Alias {
    /// Makes the table of places with weights above zero, whose sum must be below 2^63.
    pub fn make(&mut self, places: impl Iterator<Item = (u32, u64)> + Clone) {
        let Self { cells, total, light, heavy } = self;
        let count = places.clone().count() as u128;
        *total = places.clone().map(|(_, weight)| weight).sum();
        let cell = u128::from(*total);
        cells.clear();
        for (place, weight) in places {
            let weight = u128::from(weight) * count;
            if weight < cell { &mut *light } else { &mut *heavy }.push((place, weight));
        }
        while let Some((owner, part)) = light.pop() {
            // the numbers are whole, so while a place has less than a cell, another one has more
            let Some((other, weight)) = heavy.pop() else { break };
            cells.push(Cell { cut: part as u64, owner, other });
            let left = weight - (cell - part);
            if left < cell { &mut *light } else { &mut *heavy }.push((other, left));
        }
        cells.extend(heavy.drain(..).map(|(owner, _)| Cell { cut: *total, owner, other: owner }));
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the place of a random word. Shares are exact up to 2^-64 times the number of places.
    #[inline(always)]
    pub fn place(&self, word: u64) -> u32 {
        let product = u128::from(word) * self.cells.len() as u128;
        let cell = self.cells[(product >> 64) as usize];
        let part = (u128::from(product as u64) * u128::from(self.total)) >> 64;
        select_unpredictable((part as u64) < cell.cut, cell.owner, cell.other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_its_share_of_all_words() {
        for weights in [vec![7], vec![5, 5], vec![1, 2, 3, 4], vec![1, 1 << 40, 3, 1 << 39], vec![9, 1, 1, 1, 1, 1, 1]]
        {
            let mut alias = Alias::default();
            // made twice: the second table must not depend on the first
            alias.make((0..3).map(|place| (place, 4)));
            alias.make((0..).zip(weights.iter().copied()));
            let count = weights.len() as u128;
            let mut shares = vec![0u128; weights.len()];
            for cell in &alias.cells {
                shares[cell.owner as usize] += u128::from(cell.cut);
                shares[cell.other as usize] += u128::from(alias.total - cell.cut);
            }
            let expected: Vec<u128> = weights.iter().map(|&weight| u128::from(weight) * count).collect();
            assert_eq!(shares, expected);
            assert_eq!(alias.cells.len(), weights.len());
            // the first and the last word of each cell
            for (index, cell) in alias.cells.iter().enumerate() {
                let start = ((index as u128) << 64).div_ceil(count) as u64;
                let last = ((((index as u128 + 1) << 64) - 1) / count) as u64;
                assert_eq!(alias.place(start), if cell.cut > 0 { cell.owner } else { cell.other });
                assert_eq!(alias.place(last), if cell.cut < alias.total { cell.other } else { cell.owner });
            }
        }
    }
}
