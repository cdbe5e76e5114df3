//! The corpus as an ordered list of units of work, and the units of one part of a job.

use std::fs::File;
use std::sync::Arc;

use super::jsonl::JsonLines;
use super::parquet::{Footer, NullRows, RowGroup};
use super::plain::PlainText;
use super::sources::{Format, Source};
use super::Rows;
use crate::error::{Error, Result};

/// A row group of a parquet file, or a whole file of another kind.
#[derive(Clone)]
pub struct Unit {
    pub source: usize,
    /// Number of the unit's first row in its file.
    pub first_row: u64,
    /// Size of the unit in bytes, in the measure of `Rows::progress`.
    pub weight: u64,
    row_group: Option<(Arc<Footer>, usize)>,
}

impl Unit {
    /// Opens the unit and passes over its first `skip` rows.
    pub fn open(&self, source: &Source, column: &str, max_line_bytes: u64, skip: u64) -> Result<Box<dyn Rows>> {
        Ok(match (source.format, &self.row_group) {
            (Format::Parquet, Some((footer, index))) if footer.is_null() => Box::new(NullRows {
                next_row: self.first_row + skip,
                end_row: self.first_row + footer.num_rows(*index),
            }),
            (Format::Parquet, Some((footer, index))) => {
                Box::new(RowGroup::open(source, footer, *index, self.first_row, skip)?)
            }
            (Format::JsonLines(codec), _) => Box::new(JsonLines::open(source, codec, column, max_line_bytes, skip)?),
            (Format::Text(codec), _) => Box::new(PlainText::open(source, codec)?),
            (Format::Parquet, None) | (Format::Unreadable, _) => {
                return Err(Error::value(format!("{}: internal error, a unit without rows", source.path.display())));
            }
        })
    }
}

/// Returns the units of a file, which must be readable.
pub fn units_of(index: usize, source: &Source, column: &str) -> Result<Vec<Unit>> {
    if source.format != Format::Parquet {
        File::open(&source.path).map_err(Error::io(&source.path))?;
        return Ok(vec![Unit { source: index, first_row: 0, weight: source.bytes.max(1), row_group: None }]);
    }
    let footer = Arc::new(Footer::read(&source.path, column)?);
    let mut first_row = 0;
    let mut units = Vec::new();
    for group in 0..footer.num_row_groups() {
        let weight = footer.text_bytes(group).max(1);
        units.push(Unit { source: index, first_row, weight, row_group: Some((footer.clone(), group)) });
        first_row += footer.num_rows(group);
    }
    Ok(units)
}

/// Returns the consecutive units of part `index` of `count`: those whose middle lies in its share of the total weight.
/// The parts are disjoint, and together they have every unit.
pub fn part_of(units: Vec<Unit>, index: u64, count: u64) -> Vec<Unit> {
    let total: u128 = units.iter().map(|unit| u128::from(unit.weight)).sum();
    let mut before = 0u128;
    let mut mine = Vec::new();
    for unit in units {
        let middle = 2 * before + u128::from(unit.weight);
        before += u128::from(unit.weight);
        if middle * u128::from(count) / (2 * total) == u128::from(index) {
            mine.push(unit);
        }
    }
    mine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_complete() {
        let weights = [1, 900, 3, 3, 50, 50, 50, 1, 1, 1];
        let units: Vec<Unit> = weights
            .iter()
            .enumerate()
            .map(|(source, &weight)| Unit { source, first_row: 0, weight, row_group: None })
            .collect();
        for count in 1..15 {
            let parts = (0..count).flat_map(|index| part_of(units.clone(), index, count));
            let order: Vec<usize> = parts.map(|unit| unit.source).collect();
            assert_eq!(order, (0..10).collect::<Vec<_>>(), "{count} parts");
        }
    }
}
