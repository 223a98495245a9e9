/**
 * Fuzzing, bounded: FUZZ_RUNS broken inputs over all parsers (20,000 with a fixed seed when it is not set), then every input that was
 * ever found, and the control socket itself.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { createConnection } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { systemClock } from '../../daemon/clock/system.ts';
import { serveControl } from '../../daemon/control/server.ts';
import { silentLog } from '../../daemon/log.ts';
import { asFields, decode, encode, flag, text } from '../../protocol/codec.ts';
import { AxError, isErrorCode } from '../../protocol/errors.ts';
import { encodeFrame } from '../../protocol/frame.ts';
import { CONTROL_PROTOCOL } from '../../protocol/version.ts';
import { fromHex } from '../protocol/sample.ts';
import { readFrames } from '../framing.ts';
import { Chance } from './chance.ts';
import { mutateBytes, mutateCbor } from './mutate.ts';
import { CORPUS, fault, fuzz } from './run.ts';
import { controlRequests, TARGETS } from './targets.ts';

const SEEDS = join(import.meta.dirname, 'seeds');
const asked = Number(process.env['FUZZ_RUNS'] ?? '');
const isLong = Number.isSafeInteger(asked) && asked > 0;
const runs = isLong ? asked : 20_000;
const seed = Number(process.env['FUZZ_SEED'] ?? '') || (isLong ? Date.now() % 2 ** 31 : 1);
const share = runs / TARGETS.reduce((sum, target) => sum + (target.weight ?? 1), 0);

for (const target of TARGETS) {
  const count = Math.ceil(share * (target.weight ?? 1));
  test(`${target.name}: ${count} broken inputs give a value or an AxError, quickly, and touch no prototype`, async (t) => {
    for (const good of target.good) assert.equal(await fault(target, good), undefined);
    await fuzz(target, count, seed);
    t.diagnostic(`seed ${seed}`);
  });
}

test('every input that was ever found wanting is taken now', async () => {
  for (const file of readdirSync(CORPUS).filter((name) => name.endsWith('.hex'))) {
    const target = TARGETS.find((one) => one.name === file.slice(0, file.indexOf('.')));
    assert.ok(target !== undefined, `${file} names no target`);
    assert.equal(await fault(target, fromHex(readFileSync(join(CORPUS, file), 'utf8').replaceAll(/\s/g, ''))), undefined, file);
  }
});

test('every input that once reached something new is taken, whatever it holds', async () => {
  for (const file of readdirSync(SEEDS)) {
    const target = TARGETS.find((one) => `${one.name}.txt` === file);
    assert.ok(target !== undefined, `${file} names no target`);
    for (const line of readFileSync(join(SEEDS, file), 'utf8').split('\n'))
      assert.equal(await fault(target, new Uint8Array(Buffer.from(line, 'base64'))), undefined, `${file}: ${line}`);
  }
});

test('a control socket under broken requests answers with known codes or closes, and goes on serving', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'axf-'));
  const path = join(folder, 'c', 'control.sock');
  const server = await serveControl({ path, call: async () => ({ done: true }), log: silentLog, clock: systemClock });
  t.after(async () => {
    await server.close();
    rmSync(folder, { recursive: true });
  });
  const answersTo = async (sent: Uint8Array): Promise<Uint8Array[]> => {
    const socket = createConnection({ path });
    const broken = new Promise((resolve) => void socket.once('close', resolve));
    socket.on('error', () => socket.destroy());
    socket.end(sent);
    const answers: Uint8Array[] = [];
    try {
      for await (const frame of readFrames(socket)) answers.push(frame);
    } catch (error) {
      assert.ok(error instanceof AxError || (error as NodeJS.ErrnoException).code !== undefined, String(error));
    }
    socket.destroy();
    await broken;
    return answers;
  };
  const chance = new Chance(seed);
  const connections = isLong ? Math.min(5000, Math.ceil(runs / 100)) : 200;
  for (let n = 0; n < connections; n++) {
    const frames = Array.from({ length: 1 + chance.below(4) }, () =>
      mutateCbor(chance, chance.pick(controlRequests), controlRequests),
    ).filter((frame) => frame.length > 0);
    const whole = new Uint8Array(Buffer.concat(frames.map((frame) => encodeFrame(frame))));
    const sent = chance.oneIn(3) ? mutateBytes(chance, whole, controlRequests) : whole;
    for (const answer of await answersTo(sent)) {
      const fields = asFields(decode(answer), 'an answer');
      if (flag(fields, 'ok')) continue;
      const code = text(asFields(fields['error'], 'an error'), 'code', 64);
      assert.ok(isErrorCode(code) && code !== 'internal', `seed ${seed}, connection ${n}: ${code}`);
    }
  }
  const origin = { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'cli' };
  const [last] = await answersTo(encodeFrame(encode({ v: CONTROL_PROTOCOL, id: 1, method: 'host.id', params: {}, origin, session: null })));
  assert.deepEqual(asFields(decode(last!), 'an answer')['result'], { done: true });
});
