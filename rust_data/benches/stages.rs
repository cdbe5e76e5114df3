//! The stages of tokenization one by one, on the bundled sample text: `cargo bench`.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use rust_data::bpe::encoder::Encoder;
use rust_data::bpe::merge::Merges;
use rust_data::bpe::model::Model;
use rust_data::bpe::vocab::Vocab;
use rust_data::corpus::find::find;
use rust_data::corpus::units::units_of;
use rust_data::corpus::{Batch, Fill};
use rust_data::shards::writer::ShardWriter;
use rust_data::simd::{Kernel, Level, Simd, BLOCK};
use rust_data::text::blocks::Blocks;
use rust_data::text::scalar;
use rust_data::text::seams::Seams;

fn sample() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("rust_data/assets/sample_edu.parquet");
    let sources = find(&[path], false).expect("the sample is in the repository").sources;
    let mut text = String::new();
    for unit in units_of(0, &sources[0], "text").expect("a readable footer") {
        let mut rows = unit.open(&sources[0], "text", 1 << 20, 0).expect("a readable row group");
        let mut batch = Batch::default();
        while rows.fill(&mut batch, true).expect("readable pages") != Fill::End {}
        text.push_str(&batch.text);
    }
    text
}

/// The number of pretokens.
struct CountBlocks<'t>(&'t str);

impl Kernel for CountBlocks<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> usize {
        let seams = Seams::none();
        let (mut blocks, mut starts, mut count) = (Blocks::new(self.0, &seams), [0; BLOCK], 0);
        while !blocks.is_done() {
            count += blocks.next(simd, &mut starts);
        }
        count
    }
}

/// The number of tokens of all words, each merged from its bytes.
struct MergeWords<'a>(&'a Merges, &'a [&'a [u8]], &'a mut Vec<u16>);

impl Kernel for MergeWords<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> usize {
        let Self(merges, words, ids) = self;
        ids.clear();
        words.iter().for_each(|word| merges.encode(simd, word, ids));
        ids.len()
    }
}

fn splitter(c: &mut Criterion) {
    let text = sample();
    let mut group = c.benchmark_group("splitter");
    group.throughput(Throughput::Bytes(text.len() as u64));
    for level in Level::all() {
        group.bench_function(level.name(), |b| b.iter(|| black_box(level.run(CountBlocks(&text)))));
    }
    group.bench_function("one character at a time", |b| {
        let mut starts = Vec::new();
        b.iter(|| {
            starts.clear();
            scalar::split(&text, &mut starts);
            black_box(starts.len())
        });
    });
    group.finish();
}

fn merge_loop(c: &mut Criterion) {
    let text = sample();
    let mut starts = Vec::new();
    scalar::split(&text, &mut starts);
    let words: Vec<&[u8]> = starts.windows(2).map(|w| &text.as_bytes()[w[0]..w[1]]).collect();
    let merges = Merges::new(&Vocab::gpt2().expect("bundled"));
    let mut group = c.benchmark_group("merge loop");
    group.throughput(Throughput::Elements(words.len() as u64));
    for level in Level::all() {
        let mut ids = Vec::new();
        group.bench_function(level.name(), |b| b.iter(|| black_box(level.run(MergeWords(&merges, &words, &mut ids)))));
    }
    group.finish();
}

fn encoder(c: &mut Criterion) {
    let text = sample();
    let model = Arc::new(Model::gpt2().expect("bundled"));
    let mut group = c.benchmark_group("encoder");
    group.throughput(Throughput::Bytes(text.len() as u64));
    let mut encoder = Encoder::<u16>::new(model);
    let mut ids = Vec::new();
    group.bench_function("warm", |b| {
        b.iter(|| {
            ids.clear();
            encoder.encode(&text, &mut ids).expect("the native splitter cannot fail");
            black_box(ids.len())
        });
    });
    group.finish();
}

fn writer(c: &mut Criterion) {
    let model = Model::gpt2().expect("bundled");
    let tokens: Vec<u16> = (0..10_000_000u32).map(|i| (i % 50_000) as u16).collect();
    let folder = std::env::temp_dir().join(format!("rust_data_bench_{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a writable temporary directory");
    let mut group = c.benchmark_group("writer");
    group.throughput(Throughput::Bytes(2 * tokens.len() as u64)).sample_size(10);
    group.bench_function("10M tokens, synced and hashed", |b| {
        b.iter(|| {
            let mut shard = ShardWriter::create::<u16>(&folder, "shard.bin".to_owned(), &model).expect("create");
            tokens.chunks(250_000).for_each(|part| shard.push(part).expect("write"));
            black_box(shard.finish().expect("finish"))
        });
    });
    group.finish();
    std::fs::remove_dir_all(&folder).expect("remove");
}

criterion_group!(benches, splitter, merge_loop, encoder, writer);
criterion_main!(benches);
