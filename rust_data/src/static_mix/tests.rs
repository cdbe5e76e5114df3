//! Mixing against the product with the matrix of the pattern, in float64.

use std::f64::consts::PI;

use super::complex::Factor;
use super::mix::{Head, Mixer};
use super::tensor::{Bf16, Element, Layout, Source, Target};
use crate::simd::Level;

fn fastest() -> Level {
    Level::all().pop().unwrap()
}

/// Numbers in -1 .. 1.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Half the spectra of weights, by the definition.
fn half_spectra(weight: &[f32], size: usize) -> [Vec<Factor>; 2] {
    [0.0, 0.5].map(|shift| {
        let at = |frequency: usize| {
            let angle = |t: usize| -2.0 * PI * t as f64 * (frequency as f64 + shift) / size as f64;
            let sum = |part: fn(f64) -> f64| {
                weight.iter().enumerate().map(|(t, &w)| f64::from(w) * part(angle(t))).sum::<f64>() / 2.0
            };
            [sum(f64::cos) as f32, sum(f64::sin) as f32]
        };
        (0..size).map(at).collect()
    })
}

struct Example {
    layout: Layout,
    scale: Vec<f32>,
    weight: Vec<f32>,
    inv_z: Vec<f32>,
    spectra: [Vec<Factor>; 2],
    x: Vec<f32>,
}

impl Example {
    fn new([batch, time, heads, channels]: [usize; 4], size: usize) -> Self {
        let positive = |seed| numbers(time, seed).iter().map(|x| x + 1.01).collect::<Vec<_>>();
        let weight = positive(2);
        Self {
            layout: Layout {
                shape: [batch, time, heads, channels],
                strides: [time * heads * channels, heads * channels, channels],
            },
            scale: positive(1),
            spectra: half_spectra(&weight, size),
            weight,
            inv_z: positive(3),
            x: numbers(batch * time * heads * channels, 4),
        }
    }

    fn head(&self, heavy: &[usize], places: (usize, usize)) -> Head<'_> {
        Head {
            scale: &self.scale,
            weight: &self.weight,
            inv_z: &self.inv_z,
            spectra: [&self.spectra[0], &self.spectra[1]],
            heavy: heavy.to_vec(),
            places,
        }
    }

    fn mix(&self, level: Level, mixer: &Mixer<'_>, threads: usize) -> Vec<f32> {
        let mut y = vec![f32::NAN; self.x.len()];
        let source = Source::new(&self.x, self.layout).unwrap();
        let target = Target::new(&mut y, self.layout).unwrap();
        mixer.mix(level, &source, &target, threads).unwrap();
        y
    }

    /// Entry of the matrix of the pattern, or of its transpose.
    fn entry(&self, row: usize, column: usize, transpose: bool) -> f64 {
        let (row, column) = if transpose { (column, row) } else { (row, column) };
        if column > row {
            return 0.0;
        }
        [self.inv_z[row], self.weight[row - column], self.scale[column]].iter().map(|&x| f64::from(x)).product()
    }

    fn assert_mixed(&self, y: &[f32], from: usize, to: usize, transpose: bool) {
        let [batch, time, heads, channels] = self.layout.shape;
        for b in 0..batch {
            for c in 0..channels {
                let at = |t: usize, head: usize| ((b * time + t) * heads + head) * channels + c;
                for t in 0..time {
                    let sum: f64 =
                        (0..time).map(|u| self.entry(t, u, transpose) * f64::from(self.x[at(u, from)])).sum();
                    let found = f64::from(y[at(t, to)]);
                    assert!((found - sum).abs() < 2e-6 * time as f64, "{t}: {found} is not {sum}");
                }
            }
        }
    }
}

#[test]
fn mixing_is_the_product_with_the_matrix() {
    // every radix, blocks beyond the first cache, padded lengths, odd channels and several groups of them
    let cases = [(1, 2), (2, 2), (5, 5), (9, 9), (16, 16), (30, 30), (97, 100), (250, 250), (600, 600), (1024, 1024)];
    for (time, size) in cases {
        let channels = if time < 100 { 37 } else { 3 };
        let example = Example::new([2, time, 2, channels], size);
        let heavy: Vec<usize> = [0, 1, 7, time - 1].into_iter().filter(|&column| column < time).collect();
        for heavy in [&[][..], &heavy[..heavy.len().min(time)]] {
            let mut heavy = heavy.to_vec();
            heavy.dedup();
            for transpose in [false, true] {
                let mixer = Mixer { heads: vec![example.head(&heavy, (1, 0))], transpose };
                for level in Level::all() {
                    let y = example.mix(level, &mixer, 1);
                    example.assert_mixed(&y, 1, 0, transpose);
                    let others = y.chunks_exact(2 * channels).flat_map(|heads| &heads[channels..]);
                    assert!(others.into_iter().all(|x| x.is_nan()), "another head was written");
                }
            }
        }
    }
}

#[test]
fn threads_change_nothing() {
    // enough work for three threads
    let example = Example::new([3, 360, 2, 70], 360);
    let mixer = Mixer { heads: vec![example.head(&[0, 3], (0, 1)), example.head(&[2], (1, 0))], transpose: false };
    let expected = example.mix(fastest(), &mixer, 1);
    for threads in [2, 5, 64] {
        assert_eq!(example.mix(fastest(), &mixer, threads), expected);
    }
}

#[test]
fn bf16_is_rounded_once() {
    let example = Example::new([1, 48, 1, 40], 48);
    let mixer = Mixer { heads: vec![example.head(&[1], (0, 0))], transpose: true };
    let x: Vec<Bf16> = example.x.iter().map(|&x| Bf16::from_f32(x)).collect();
    let rounded = Example { x: x.iter().map(|x| x.to_f32()).collect(), ..Example::new([1, 48, 1, 40], 48) };
    let expected: Vec<Bf16> = rounded.mix(fastest(), &mixer, 1).iter().map(|&y| Bf16::from_f32(y)).collect();
    let mut y = vec![Bf16(0x7FC0); x.len()];
    let target = Target::new(&mut y, example.layout).unwrap();
    mixer.mix(fastest(), &Source::new(&x, example.layout).unwrap(), &target, 1).unwrap();
    assert_eq!(y, expected);
}

#[test]
fn bf16_rounds_to_nearest_even() {
    for (value, bits) in [
        (1.0, 0x3F80),
        (1.0 + 1.0 / 256.0, 0x3F80),
        (1.0 + 3.0 / 256.0, 0x3F82),
        (-0.0, 0x8000),
        (f32::MAX, 0x7F80),
        (f32::NEG_INFINITY, 0xFF80),
    ] {
        assert_eq!(Bf16::from_f32(value), Bf16(bits), "{value}");
    }
    assert!(Bf16::from_f32(f32::from_bits(0x7FFF_FFFF)).to_f32().is_nan());
}

#[test]
fn what_does_not_fit_is_refused() {
    let example = Example::new([1, 6, 2, 4], 6);
    let source = Source::new(&example.x, example.layout).unwrap();
    let refused = |heads: Vec<Head<'_>>| {
        let mut y = vec![0.0; example.x.len()];
        let target = Target::new(&mut y, example.layout).unwrap();
        Mixer { heads, transpose: false }.mix(fastest(), &source, &target, 1).unwrap_err().to_string()
    };
    assert!(refused(vec![example.head(&[6], (0, 0))]).contains("heavy columns [6]"));
    assert!(refused(vec![example.head(&[], (2, 0))]).contains("at (2, 0)"));
    assert!(refused(vec![example.head(&[], (0, 0)), example.head(&[], (1, 0))]).contains("written twice: [0, 0]"));
    assert!(refused(vec![Head { scale: &example.scale[1..], ..example.head(&[], (0, 0)) }]).contains("[5, 6, 6]"));
    let sevens = half_spectra(&example.weight, 7);
    let seven = Head { spectra: [&sevens[0], &sevens[1]], ..example.head(&[], (0, 0)) };
    assert!(refused(vec![seven]).contains("size 7: it must be a product of 2, 3 and 5"));
    let overlapping = Layout { strides: [0, 8, 4], shape: [2, 6, 2, 4] };
    assert!(Source::new(&example.x, overlapping).is_ok());
    let mut y = vec![0.0; 48];
    assert!(Target::new(&mut y, overlapping).unwrap_err().to_string().contains("elements of y overlap"));
    assert!(Target::new(&mut y, Layout { strides: [48, 7, 4], ..example.layout }).is_err());
    assert!(Source::new(&example.x[1..], example.layout).unwrap_err().to_string().contains("47 elements"));
}
