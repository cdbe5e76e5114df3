//! Shares work among all threads in bounded memory, and writes the output in the order of the corpus.
//!
//! Each unit that is being read is a lane. A thread takes the reader of the oldest free lane, reads one batch, gives
//! the reader back and encodes the batch while other threads read on. Encoded batches wait in `pending` for their turn;
//! the thread that brings the next batch in order writes all batches that are due. When the waiting batches take
//! `budget` bytes, no thread reads ahead, and only the batch that the writer needs next is still read: so memory stays
//! bounded and the job never stops. A lane whose next line is long also waits for its turn, so that only one such line
//! is in memory at a time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::sink::Encoded;
use crate::bpe::id::Id;
use crate::corpus::Rows;
use crate::error::{Error, Result};

/// Place of a batch in the corpus: its unit, and its number in the unit.
type Place = (usize, u64);

pub struct Lanes<T: Id> {
    state: Mutex<State<T>>,
    changed: Condvar,
    num_units: usize,
    max_open: usize,
    budget: usize,
}

struct State<T> {
    open: VecDeque<Lane>,
    next_unit: usize,
    pending: BTreeMap<Place, (Encoded<T>, bool)>,
    pending_bytes: usize,
    due: Place,
    writing: bool,
    error: Option<Error>,
    spare: Vec<Vec<T>>,
}

struct Lane {
    unit: usize,
    next_batch: u64,
    reader: Reader,
    /// Whether the next batch may be read only when the writer needs it next.
    waits: bool,
}

enum Reader {
    Unopened,
    Taken,
    Free(Box<dyn Rows>),
}

/// A lane that a thread may read one batch from. `reader` is `None` for a unit that has not been opened.
pub struct Ticket {
    pub unit: usize,
    batch: u64,
    /// Whether the writer needs this batch next.
    pub first: bool,
    pub reader: Option<Box<dyn Rows>>,
}

impl<T: Id> Lanes<T> {
    pub fn new(first_unit: usize, num_units: usize, threads: usize, budget: usize) -> Self {
        let state = State {
            open: VecDeque::new(),
            next_unit: first_unit,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            due: (first_unit, 0),
            writing: false,
            error: None,
            spare: Vec::new(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), num_units, max_open: threads, budget }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next batch to read, and waits until there is one. Returns `None` when everything has been read.
    pub fn take(&self) -> Option<Ticket> {
        let mut state = self.lock();
        loop {
            if state.error.is_some() {
                return None;
            }
            if let Some(ticket) = self.pick(&mut state) {
                return Some(ticket);
            }
            if state.open.is_empty() && state.next_unit == self.num_units {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn pick(&self, state: &mut State<T>) -> Option<Ticket> {
        if state.open.len() < self.max_open && state.next_unit < self.num_units {
            state.open.push_back(Lane { unit: state.next_unit, next_batch: 0, reader: Reader::Unopened, waits: false });
            state.next_unit += 1;
        }
        let within_budget = state.pending_bytes < self.budget;
        let due = state.due;
        let lane = state.open.iter_mut().find(|lane| {
            let may_read_ahead = within_budget && !lane.waits;
            !matches!(lane.reader, Reader::Taken) && (may_read_ahead || (lane.unit, lane.next_batch) == due)
        })?;
        let reader = match std::mem::replace(&mut lane.reader, Reader::Taken) {
            Reader::Free(reader) => Some(reader),
            Reader::Unopened | Reader::Taken => None,
        };
        let first = (lane.unit, lane.next_batch) == due;
        let ticket = Ticket { unit: lane.unit, batch: lane.next_batch, first, reader };
        lane.next_batch += 1;
        Some(ticket)
    }

    /// Gives the reader back, or closes the lane if the unit has been read to its end. `waits` says that the next batch
    /// may be read only when the writer needs it next.
    pub fn give_back(&self, unit: usize, reader: Option<Box<dyn Rows>>, waits: bool) {
        let mut state = self.lock();
        match reader {
            Some(reader) => {
                if let Some(lane) = state.open.iter_mut().find(|lane| lane.unit == unit) {
                    lane.reader = Reader::Free(reader);
                    lane.waits = waits;
                }
            }
            None => state.open.retain(|lane| lane.unit != unit),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Takes an encoded batch, and writes all batches that are due with `write`. `last` says that the unit has no
    /// further batch.
    pub fn deliver(&self, ticket: &Ticket, batch: Encoded<T>, last: bool, write: &dyn Fn(&Encoded<T>) -> Result<()>) {
        let mut state = self.lock();
        state.pending_bytes += batch.tokens.capacity() * size_of::<T>();
        state.pending.insert((ticket.unit, ticket.batch), (batch, last));
        while !state.writing && state.error.is_none() {
            let due = state.due;
            let Some((batch, last)) = state.pending.remove(&due) else {
                break;
            };
            state.writing = true;
            drop(state);
            let outcome = write(&batch);
            state = self.lock();
            state.writing = false;
            state.due = if last { (due.0 + 1, 0) } else { (due.0, due.1 + 1) };
            state.pending_bytes -= batch.tokens.capacity() * size_of::<T>();
            state.spare.push(batch.tokens);
            if let Err(error) = outcome {
                state.error.get_or_insert(error);
            }
            self.changed.notify_all();
        }
    }

    /// Returns a buffer for ids. A buffer that was used before is preferred, because its memory is mapped already.
    pub fn buffer(&self) -> Vec<T> {
        let mut buffer = self.lock().spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Stops the job.
    pub fn fail(&self, error: Error) {
        self.lock().error.get_or_insert(error);
        self.changed.notify_all();
    }

    pub fn outcome(self) -> Result<()> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.error.map_or(Ok(()), Err)
    }
}
