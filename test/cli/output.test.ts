/**
 * What the CLI prints: harmless text, the envelope, times, csv and tsv.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { ago, envelope, render, size, span, table, textOf, visible, visibleLines } from '../../cli/output.ts';

// Written as ranges, not as the property classes that the code uses.
const HARMFUL =
  // oxlint-disable-next-line no-control-regex, no-misleading-character-class
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udfff]/;
const anyText = fc.oneof(
  fc.string({ unit: 'binary' }),
  fc.string({
    unit: fc.constantFrom(
      '\x1b',
      '\x9b',
      '\u202e',
      '\u200b',
      '\u2066',
      '\ufeff',
      '\u{e0041}',
      '\u{e0101}',
      '\ud800',
      '\udc00',
      'a',
      '\n',
      '\t',
      '\r',
      '\u2028',
      '\x7f',
    ),
  }),
  fc.array(fc.integer({ min: 0, max: 0xffff })).map((units) => String.fromCharCode(...units)),
);

test('visible text never holds a control, bidirectional, zero-width or broken character', () => {
  fc.assert(
    fc.property(anyText, (text) => !HARMFUL.test(visible(text))),
    { numRuns: 3000 },
  );
  assert.equal(visible('a\x1b[2Jb\u202ec\u{e0041}'), 'a\\x1b[2Jb\\u{202e}c\\u{e0041}');
  assert.equal(visible('plain ünïcödé 漢字 🎉'), 'plain ünïcödé 漢字 🎉');
});

test('visible lines keep newline and tab and nothing else', () => {
  fc.assert(
    fc.property(anyText, (text) => !HARMFUL.test(visibleLines(text).replaceAll(/[\n\t]/g, ''))),
    { numRuns: 1000 },
  );
  assert.equal(visibleLines('a\tb\r\nc'), 'a\tb\\x0d\nc');
});

test('JSON is harmless on a terminal and loses nothing', () => {
  fc.assert(
    fc.property(anyText, (text) => {
      const line = envelope('x', { text });
      assert.equal(HARMFUL.test(line), false);
      assert.equal((JSON.parse(line) as { text: string }).text, text);
    }),
    { numRuns: 2000 },
  );
});

test('bytes that are not UTF-8 are shown one by one and the rest stays text', () => {
  assert.deepEqual(textOf(new TextEncoder().encode('\ufeffgrün')), { text: '\ufeffgrün', isUtf8: true });
  assert.deepEqual(textOf(Uint8Array.of(0x61, 0xff, 0xc3, 0xbc, 0xe2, 0x82)), { text: 'a\\xffü\\xe2\\x82', isUtf8: false });
  fc.assert(fc.property(fc.uint8Array(), (bytes) => !HARMFUL.test(visible(textOf(bytes).text))));
});

test('times are RFC 3339 in UTC, spans stay numbers', () => {
  const line = envelope('x', { at: 0, uptime_ms: 5, nested: [{ last_seen_at: 1000, since: null, name: 'at' }], impossible_at: 1e300 });
  assert.equal(
    line,
    '{"schema_version":"1","ok":true,"type":"x","at":"1970-01-01T00:00:00.000Z","uptime_ms":5,"nested":[{"last_seen_at":"1970-01-01T00:00:01.000Z","since":null,"name":"at"}],"impossible_at":null}',
  );
});

test('csv and tsv have a header row and RFC 4180 quoting that any reader undoes', () => {
  const answer = {
    type: 'x',
    fields: {},
    human: '',
    rows: {
      columns: ['a', 'b'],
      values: [
        { a: 'say "hi", now\nthen', b: ['x', 'y'] },
        { a: ['x y'], b: [{ x: 1 }] },
        { a: null, b: 3 },
      ],
    },
  };
  assert.equal(render('csv', answer), 'a,b\r\n"say ""hi"", now\nthen",x y\r\n"[""x y""]","[{""x"":1}]"\r\n,3\r\n');
  assert.equal(render('tsv', answer), 'a\tb\r\n"say ""hi"", now\nthen"\tx y\r\n"[""x y""]"\t"[{""x"":1}]"\r\n\t3\r\n');
  fc.assert(
    fc.property(
      fc.string({ unit: 'binary' }).filter((text) => text.isWellFormed()),
      (text) => {
        const out = render('csv', { ...answer, rows: { columns: ['a'], values: [{ a: text }] } });
        const cell = out.slice(3, -2);
        const back = cell.startsWith('"') ? cell.slice(1, -1).replaceAll('""', '"') : cell;
        const isFormula = /^\s*[=+\-@＝＋－＠]/.test(text);
        assert.equal(
          back,
          `${isFormula ? "'" : ''}${visibleLines(text)}`,
          'whole but for what could act on a terminal or in a spreadsheet',
        );
      },
    ),
  );
});

test('no text of csv or tsv is a formula for a spreadsheet, and no number is changed', () => {
  const texts = ['=1+1', '+1', '-1', '@SUM(A1)', '\t=1', ' \n=cmd', '＝1'];
  const values = [...texts.map((a) => ({ a })), { a: -1 }, { a: ['=x', '-y'] }, { a: 'a=1' }];
  for (const format of ['csv', 'tsv'] as const) {
    const lines = render(format, { type: 'x', fields: {}, human: '', rows: { columns: ['a'], values } })
      .slice(3, -2)
      .split('\r\n');
    assert.deepEqual(
      lines.map((line) => line.replace(/^"/, '')[0]),
      [...texts.map(() => "'"), '-', "'", 'a'],
    );
  }
});

test('a table is aligned, without borders, and its cells are harmless', async () => {
  const text = await table(
    ['HOST', 'STATE'],
    [
      ['a\x1b[31m', 'up'],
      ['longer-name', ''],
    ],
  );
  assert.equal(text, 'HOST         STATE\na\\x1b[31m    up\nlonger-name  -');
});

test('ages and spans have two units and are never rounded down into a loss', () => {
  const [hour, day] = [3_600_000, 86_400_000];
  assert.equal(ago(null), '-');
  assert.equal(ago(Date.now() - 90_200), '1 min 30 s ago');
  assert.equal(ago(Date.now() + 15 * 60_000 - 30), 'in 15 min');
  const told = [20, 1500, 14 * 60_000 + 59_000, 2 * hour, 3 * day - hour, 3 * day - 1000, 14 * day, 30 * day, 30 * hour].map(span);
  assert.deepEqual(told, ['20 ms', '1.5 s', '14 min 59 s', '2 h', '2 d 23 h', '3 d', '14 d', '30 d', '1 d 6 h']);
  assert.deepEqual([59_999, hour - 1, day - 1].map(span), ['1 min', '1 h', '1 d']);
  assert.deepEqual([0, 1, 2].map(size), ['0 bytes', '1 byte', '2 bytes']);
});
