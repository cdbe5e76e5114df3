//! The plan of all transforms of one size: stages, their twiddle factors, and where each frequency ends up.

use std::collections::BTreeMap;
use std::f64::consts::PI;
use std::sync::{Arc, Mutex};

use super::complex::Factor;
use crate::error::{Error, Result};

/// Most plans that are kept; packed documents have many lengths. When it is reached, all plans are dropped.
const MAX_CACHED: usize = 64;

/// A stage splits blocks of `radix * span` positions into `radix` blocks of `span`.
#[derive(Debug)]
pub struct Stage {
    pub radix: usize,
    pub span: usize,
    /// exp(-2 pi i j q / (radix * span)) at `(radix - 1) * j + q - 1`, for q from 1 on.
    pub factors: Vec<Factor>,
}

impl Stage {
    pub fn block(&self) -> usize {
        self.radix * self.span
    }
}

#[derive(Debug)]
pub struct Plan {
    pub size: usize,
    pub stages: Vec<Stage>,
    /// The frequency that a forward transform leaves at each place.
    pub frequencies: Vec<u32>,
    /// exp(-i pi n / size): makes a cyclic convolution a negacyclic one.
    pub twist: Vec<Factor>,
}

impl Plan {
    /// Returns the plan of a size, from a cache. Sizes may have the prime factors 2, 3 and 5.
    pub fn of(size: usize) -> Result<Arc<Self>> {
        static PLANS: Mutex<BTreeMap<usize, Arc<Plan>>> = Mutex::new(BTreeMap::new());
        // only try the lock: after a fork it may be held by a thread that does not exist any more
        if let Some(plan) = PLANS.try_lock().ok().and_then(|plans| plans.get(&size).cloned()) {
            return Ok(plan);
        }
        let plan = Arc::new(Self::new(size)?);
        if let Ok(mut plans) = PLANS.try_lock() {
            if plans.len() == MAX_CACHED {
                plans.clear();
            }
            plans.insert(size, plan.clone());
        }
        Ok(plan)
    }

    fn new(size: usize) -> Result<Self> {
        let mut stages = Vec::new();
        let mut span = size;
        for radix in [5, 3, 4, 2] {
            while span.is_multiple_of(radix) && span > 1 {
                span /= radix;
                let factors = (0..span).flat_map(|j| (1..radix).map(move |q| root(j * q, radix * span))).collect();
                stages.push(Stage { radix, span, factors });
            }
        }
        if span != 1 || size > 1 << 30 {
            return Err(Error::value(format!("no transform of size {size}: it must be a product of 2, 3 and 5")));
        }
        let frequencies = (0..size).map(|place| frequency(&stages, place)).collect();
        let twist = (0..size).map(|n| root(n, 2 * size)).collect();
        Ok(Self { size, stages, frequencies, twist })
    }
}

/// exp(-2 pi i k / n).
fn root(k: usize, n: usize) -> Factor {
    let (sin, cos) = (-2.0 * PI * k as f64 / n as f64).sin_cos();
    [cos as f32, sin as f32]
}

/// Block q of a stage holds the frequencies that are q modulo its radix.
fn frequency(stages: &[Stage], place: usize) -> u32 {
    let (mut place, mut step, mut frequency) = (place, 1, 0);
    for stage in stages {
        frequency += step * (place / stage.span);
        place %= stage.span;
        step *= stage.radix;
    }
    frequency as u32
}
