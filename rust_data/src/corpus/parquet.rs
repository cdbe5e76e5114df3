//! Reads the text column of one row group of a parquet file, page by page.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{LogicalType, Type};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescPtr;

use super::sources::Source;
use super::{push_pieces, Batch, Fill, Rows, BATCH_BYTES};
use crate::error::{Error, Result};
use crate::text::utf8::from_utf8;

/// Number of rows that are taken from the column reader at a time. A batch holds some hundreds.
const ROWS_AT_ONCE: usize = 64;
const IS_NULL: &str = "text is null";

/// The footer of a file, and the column of the text.
pub struct Footer {
    metadata: ParquetMetaData,
    column: usize,
}

impl Footer {
    pub fn read(path: &Path, column: &str) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(path))?;
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).map_err(|error| broken(path, &error))?;
        let schema = metadata.file_metadata().schema_descr();
        let columns = schema.columns();
        let holds_text = |leaf: &ColumnDescPtr| {
            leaf.max_rep_level() == 0 && (leaf.physical_type() == Type::BYTE_ARRAY || is_null(leaf))
        };
        let refuse = |fault: String| {
            let names: Vec<_> =
                columns.iter().filter(|leaf| holds_text(leaf)).map(|leaf| leaf.path().string()).collect();
            let remedy = match names.is_empty() {
                true => "no column does".to_owned(),
                false => format!("--column can be one of {}", names.join(", ")),
            };
            Error::value(format!("{}: {fault}; {remedy}", path.display()))
        };
        match columns.iter().position(|leaf| leaf.path().string() == column) {
            Some(index) if holds_text(&columns[index]) => Ok(Self { metadata, column: index }),
            _ => Err(refuse(format!("no column {column:?} holds one text a row"))),
        }
    }

    /// Whether the column has the type that writers give to a column of nulls only.
    pub fn is_null(&self) -> bool {
        is_null(&self.metadata.file_metadata().schema_descr().column(self.column))
    }

    pub fn num_row_groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    pub fn num_rows(&self, row_group: usize) -> u64 {
        self.metadata.row_group(row_group).num_rows() as u64
    }

    pub fn text_bytes(&self, row_group: usize) -> u64 {
        self.metadata.row_group(row_group).column(self.column).uncompressed_size() as u64
    }
}

fn is_null(leaf: &ColumnDescPtr) -> bool {
    leaf.logical_type_ref() == Some(&LogicalType::Unknown)
}

fn broken(path: &Path, error: &ParquetError) -> Error {
    // the error of the library for a codec that is not built in
    if let Some((_, codec)) = error.to_string().split_once("Disabled feature at compile time: ") {
        return Error::value(format!(
            "{}: {codec} is not supported; write it with snappy, zstd or gzip",
            path.display()
        ));
    }
    Error::value(format!("{}: broken parquet file: {error}", path.display()))
}

/// A row group whose text column holds nulls only.
pub struct NullRows {
    pub next_row: u64,
    pub end_row: u64,
}

impl Rows for NullRows {
    fn fill(&mut self, batch: &mut Batch, _first: bool) -> Result<Fill> {
        let end = self.end_row.min(self.next_row + BATCH_BYTES as u64 / 16);
        (self.next_row..end).for_each(|row| batch.reject(row, IS_NULL));
        self.next_row = end;
        Ok(if end < self.end_row { Fill::More } else { Fill::End })
    }

    fn progress(&self) -> u64 {
        0
    }
}

pub struct RowGroup {
    path: std::path::PathBuf,
    reader: ColumnReaderImpl<ByteArrayType>,
    max_def_level: i16,
    /// The row group's rows are numbered through the file.
    next_row: u64,
    end_row: u64,
    values: Vec<ByteArray>,
    levels: Vec<i16>,
    /// The next of `values` and `levels`, and the rest of a long row.
    next_value: usize,
    next_level: usize,
    pending: Option<(u64, ByteArray)>,
    read: u64,
}

impl RowGroup {
    /// Opens a row group whose first row is row `first_row` of the file, and passes over its first `skip` rows.
    pub fn open(source: &Source, footer: &Footer, row_group: usize, first_row: u64, skip: u64) -> Result<Self> {
        let path = source.path.clone();
        let file = Arc::new(File::open(&path).map_err(Error::io(&path))?);
        let group = footer.metadata.row_group(row_group);
        let descriptor = footer.metadata.file_metadata().schema_descr().column(footer.column);
        let max_def_level = descriptor.max_def_level();
        let num_rows = footer.num_rows(row_group);
        let pages = SerializedPageReader::new(file, group.column(footer.column), num_rows as usize, None)
            .map_err(|error| broken(&path, &error))?;
        let mut reader = ColumnReaderImpl::<ByteArrayType>::new(descriptor, Box::new(pages));
        reader.skip_records(skip as usize).map_err(|error| broken(&path, &error))?;
        Ok(Self {
            path,
            reader,
            max_def_level,
            next_row: first_row + skip,
            end_row: first_row + num_rows,
            values: Vec::new(),
            levels: Vec::new(),
            next_value: 0,
            next_level: 0,
            pending: None,
            read: 0,
        })
    }

    /// Reads the next rows. An error names the rows that cannot be read.
    fn fetch(&mut self) -> Result<()> {
        self.values.clear();
        self.levels.clear();
        (self.next_value, self.next_level) = (0, 0);
        let levels = (self.max_def_level > 0).then_some(&mut self.levels);
        let (num_rows, _, _) = self
            .reader
            .read_records(ROWS_AT_ONCE, levels, None, &mut self.values)
            .map_err(|error| broken(&self.path, &error))?;
        if num_rows == 0 {
            return Err(Error::value(format!("{}: broken parquet file: rows missing", self.path.display())));
        }
        if self.max_def_level == 0 {
            self.levels.resize(num_rows, 0);
        }
        Ok(())
    }
}

impl Rows for RowGroup {
    fn fill(&mut self, batch: &mut Batch, _first: bool) -> Result<Fill> {
        if let Some((row, value)) = self.pending.take() {
            self.push(batch, row, value);
        }
        while !batch.is_full() {
            if self.next_row == self.end_row {
                return Ok(Fill::End);
            }
            if self.next_level == self.levels.len() {
                if let Err(error) = self.fetch() {
                    // rows before the damage are kept; the rest of the group is lost
                    batch.rejected.extend(
                        (self.next_row..self.end_row).map(|row| super::Rejected { row, reason: error.to_string() }),
                    );
                    return Ok(Fill::End);
                }
            }
            let row = self.next_row;
            self.next_row += 1;
            let present = self.levels[self.next_level] == self.max_def_level;
            self.next_level += 1;
            if present {
                let value = std::mem::take(&mut self.values[self.next_value]);
                self.next_value += 1;
                self.read += value.len() as u64;
                self.push(batch, row, value);
            } else {
                batch.reject(row, IS_NULL);
            }
        }
        let more = self.next_row < self.end_row || self.pending.is_some();
        Ok(if more { Fill::More } else { Fill::End })
    }

    fn progress(&self) -> u64 {
        self.read
    }
}

impl RowGroup {
    fn push(&mut self, batch: &mut Batch, row: u64, value: ByteArray) {
        match from_utf8(value.data()) {
            Ok(text) => {
                if let Some(rest) = push_pieces(batch, row, text) {
                    let from = value.len() - rest.len();
                    self.pending = Some((row, value.slice(from, rest.len())));
                }
            }
            Err(error) => batch.reject(row, format!("invalid UTF-8 at byte {}", error.valid_up_to())),
        }
    }
}
