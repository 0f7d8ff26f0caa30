//! Where secrets stand in a text, in a time that for each of them grows with the text alone, however alike the two are (after
//! Knuth, Morris and Pratt).

/// What begins at a place of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mark {
    #[default]
    Nothing,
    /// Secrets, the longest of which has that many bytes.
    Secret(usize),
    /// What the text ends in, and may be the beginning of a secret.
    Unfinished,
}

/// One secret on its way through a text.
pub(crate) struct Reader<'a> {
    secret: &'a [u8],
    /// How many bytes of its beginning are the last ones that were read.
    matched: usize,
    /// For each beginning that was met, by its length less one: the longest shorter beginning that it ends with.
    borders: Vec<usize>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(secret: &'a [u8]) -> Self {
        Self { secret, matched: 0, borders: Vec::new() }
    }

    /// Whether nothing that was read may belong to the secret.
    pub(crate) fn is_idle(&self) -> bool {
        self.matched == 0
    }

    /// The length of the secret, where it ends with this byte.
    pub(crate) fn read(&mut self, byte: u8) -> Option<usize> {
        // A whole secret has no next byte, and so goes on with its border too.
        while self.matched > 0 && self.secret.get(self.matched) != Some(&byte) {
            self.matched = self.border(self.matched);
        }
        if self.secret.get(self.matched) == Some(&byte) {
            self.matched += 1;
            self.learn();
        }
        (self.matched == self.secret.len()).then_some(self.matched)
    }

    /// The lengths of all beginnings, short of the whole, that what was read ends with.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = usize> {
        let lengths = std::iter::successors(Some(self.matched), |length| Some(self.border(*length)));
        lengths.take_while(|length| *length > 0).filter(|length| *length < self.secret.len())
    }

    fn border(&self, length: usize) -> usize {
        length.checked_sub(1).and_then(|place| self.borders.get(place)).copied().unwrap_or(0)
    }

    /// The borders up to what is matched now.
    fn learn(&mut self) {
        while self.borders.len() < self.matched {
            let length = self.borders.len();
            let byte = self.secret.get(length);
            let mut border = self.border(length);
            while border > 0 && self.secret.get(border) != byte {
                border = self.border(border);
            }
            let goes_on = length > 0 && self.secret.get(border) == byte;
            self.borders.push(border + usize::from(goes_on));
        }
    }
}
