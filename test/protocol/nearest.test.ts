/** What a mistyped word was perhaps meant to be: proposed when it is near and alone, and never otherwise. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { didYouMean, nearest } from '../../protocol/nearest.ts';

test('a slip or two propose the one word that is near; a far word, a tie and a very long word propose nothing', () => {
  const words = ['hostb', 'hostc', 'builder', 'write', 'read', 'Localhost'];
  const cases: [string, string | undefined][] = [
    ['wriet', 'write'],
    ['WRITE', 'write'],
    ['rea', 'read'],
    ['bilder', 'builder'],
    ['bulidre', 'builder'],
    ['localhots', 'Localhost'],
    ['hostd', undefined],
    ['hostbb', 'hostb'],
    ['nothing', undefined],
    ['', undefined],
    ['x'.repeat(10_000), undefined],
  ];
  for (const [typed, meant] of cases) assert.equal(nearest(typed, words), meant, typed.slice(0, 20));
  assert.equal(nearest('ab', ['cd']), undefined);
  assert.deepEqual([didYouMean('wriet', words), didYouMean('zzz', words)], ['; did you mean write?', '']);
});
