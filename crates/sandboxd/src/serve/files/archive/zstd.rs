//! zstd as streams: the library packs and unpacks single frames, a stream is any number of them.

use std::io::{self, BufRead, Read, Write};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// Bytes that are packed as one frame.
const FRAME_BYTES: usize = 1 << 20;

/// Most memory that a frame may ask of its reader: what the format says every reader should have.
const WINDOW_BYTES: u64 = 8 << 20;

/// Packs what is written to it.
pub(super) struct Packer<W: Write> {
    target: W,
    gathered: Vec<u8>,
}

impl<W: Write> Packer<W> {
    pub(super) fn new(target: W) -> Self {
        Self { target, gathered: Vec::new() }
    }

    pub(super) fn finish(mut self) -> io::Result<W> {
        self.frame()?;
        Ok(self.target)
    }

    fn frame(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let frame = compress_to_vec(self.gathered.as_slice(), CompressionLevel::Fastest);
        self.gathered.clear();
        self.target.write_all(&frame)
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(FRAME_BYTES - self.gathered.len());
        self.gathered.extend_from_slice(&bytes[..taken]);
        if self.gathered.len() == FRAME_BYTES {
            self.frame()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Unpacks what it reads.
pub(super) struct Unpacker<R: BufRead> {
    source: R,
    decoder: FrameDecoder,
    /// Whether a frame has begun that is not at its end.
    inside: bool,
}

impl<R: BufRead> Unpacker<R> {
    pub(super) fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_BYTES);
        Self { source, decoder, inside: false }
    }

    /// Begins the next frame; false at the end of the stream.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut (&mut self.source).take(length), &mut io::sink())?;
                    if skipped < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
            }
        }
    }
}

impl<R: BufRead> Read for Unpacker<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if self.inside && self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.inside && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
                continue;
            }
            if self.inside {
                self.inside = false;
                let (stated, is) = (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
                if stated.is_some() && stated != is {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a checksum is wrong"));
                }
            }
            if !self.begin()? {
                return Ok(0);
            }
            self.inside = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_whatever_its_size() {
        for size in [0, 1, 4096, FRAME_BYTES - 1, FRAME_BYTES, 3 * FRAME_BYTES + 7] {
            let content: Vec<u8> = (0..size).map(|index| (index * 31 + index / 257) as u8).collect();
            let mut packer = Packer::new(Vec::new());
            packer.write_all(&content).expect("memory takes everything");
            let packed = packer.finish().expect("memory takes everything");
            let mut unpacked = Vec::new();
            Unpacker::new(packed.as_slice()).read_to_end(&mut unpacked).expect("whole frames");
            assert!(unpacked == content, "{size}");
        }
    }

    #[test]
    fn frames_to_skip_are_skipped_and_half_frames_are_told() {
        let frame = compress_to_vec(b"hello".as_slice(), CompressionLevel::Fastest);
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3], frame.as_slice(), frame.as_slice()].concat();
        let mut text = String::new();
        Unpacker::new(skipped.as_slice()).read_to_string(&mut text).expect("whole frames");
        assert_eq!(text, "hellohello");
        let half = &frame[..frame.len() - 2];
        assert!(Unpacker::new(half).read_to_string(&mut text).is_err());
    }
}
