/**
 * What the CLI prints: harmless text, the envelope, times, csv and tsv.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { ago, envelope, render, span, table, textOf, visible, visibleLines } from '../../cli/output.ts';

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
        { a: null, b: 3 },
      ],
    },
  };
  assert.equal(render('csv', answer), 'a,b\r\n"say ""hi"", now\nthen","[""x"",""y""]"\r\n,3\r\n');
  assert.equal(render('tsv', answer), 'a\tb\r\n"say ""hi"", now\nthen"\t"[""x"",""y""]"\r\n\t3\r\n');
  fc.assert(
    fc.property(
      fc.string({ unit: 'binary' }).filter((text) => text.isWellFormed()),
      (text) => {
        const out = render('csv', { ...answer, rows: { columns: ['a'], values: [{ a: text }] } });
        const cell = out.slice(3, -2);
        const back = cell.startsWith('"') ? cell.slice(1, -1).replaceAll('""', '"') : cell;
        assert.equal(back, text);
      },
    ),
  );
});

test('a table is aligned, without borders, and its cells are harmless', async () => {
  const text = await table(
    ['HOST', 'STATE'],
    [
      ['a\x1b[31m', 'up'],
      ['longer-name', 'down'],
    ],
  );
  assert.equal(text, 'HOST         STATE\na\\x1b[31m    up\nlonger-name  down');
});

test('ages and spans are for people', () => {
  assert.equal(ago(null), '-');
  assert.equal(ago(Date.now() - 90_000), '1 min ago');
  assert.equal(ago(Date.now() + 3_700_000), 'in 1 h');
  assert.deepEqual([span(20), span(1500), span(3_600_000 * 30), span(86_400_000 * 3)], ['20 ms', '1 s', '30 h', '3 d']);
});
