/**
 * 16 MiB bodies: MB/s from the call to the signed acceptance, beside what Noise and yamux alone carry; and a small message meanwhile.
 *
 * Owns the scene: two bodies under way at any time between two daemons, and beside them one sender of 1 KiB messages to another folder. The
 * raw stream is of the same libraries between two bare processes: nothing hashed, sealed, signed or stored.
 * A daemon that takes only smaller bodies is measured with its largest, and says so; its ratio counts for nothing then.
 */
import { AxSender } from '../ax-pair.ts';
import { closedLoop } from '../closed-loop.ts';
import { PlainChild } from '../plain-child.ts';
import { MAX_BODY_BYTES } from '../../../protocol/limits.ts';
import { ratio, type Contestant, type Row } from '../row.ts';
import type { AxPair } from '../ax-pair.ts';
import type { Pace } from '../systems.ts';

const WANTED = 16 * 1024 * 1024;
const BYTES = Math.min(WANTED, MAX_BODY_BYTES);
const BODIES_IN_FLIGHT = 2;
const isMeant = BYTES === WANTED;

/** The windows of the other rows hold too few of these. */
function longer(pace: Pace): Pace {
  return { ...pace, measureMs: pace.measureMs * 2 };
}

function axBodies(pair: AxPair, pace: Pace): Contestant {
  const [large, small] = [pair.b.workspace('large'), pair.b.workspace('small')];
  const body = new Uint8Array(BYTES).fill(0x61);
  const little = new Uint8Array(1024).fill(0x62);
  return {
    name: 'ax',
    measure: async () => {
      const [bodies, littles] = await Promise.all([AxSender.open(pair.a, BODIES_IN_FLIGHT), AxSender.open(pair.a, 1)]);
      const [big, meanwhile] = await Promise.all([
        closedLoop({ ...longer(pace), inFlight: BODIES_IN_FLIGHT, send: (one) => bodies.send(one, pair.b, large, body) }),
        closedLoop({ ...longer(pace), inFlight: 1, send: () => littles.send(0, pair.b, small, little) }),
      ]);
      await Promise.all([bodies.close(), littles.close()]);
      return {
        'MB/s': (big.perSecond * BYTES) / 1e6,
        'p50 ms': big.p50,
        'p50 ms of 1 KiB meanwhile': meanwhile.p50,
        'p99 ms of 1 KiB meanwhile': meanwhile.p99,
      };
    },
  };
}

export const bodies: Row = {
  name: 'bodies-16mib',
  title: `${BYTES / 1024 / 1024} MiB bodies, ${BODIES_IN_FLIGHT} in flight, and a 1 KiB message meanwhile`,
  targets: [
    {
      what: 'MB/s, x raw Noise+yamux',
      of: (repeat) => (isMeant ? ratio(repeat, ['ax', 'MB/s'], ['raw', 'MB/s']) : undefined),
      atLeast: 0.5,
      aim: 0.8,
    },
    { what: '1 KiB meanwhile: p50, ms', of: (repeat) => repeat['ax']?.['p50 ms of 1 KiB meanwhile'], atMost: 8 },
  ],
  setUp: async (systems) => {
    const { pace } = systems;
    const daemons = await systems.pair();
    const receiver = new PlainChild('bare-libp2p.ts', { nodes: 1 });
    const address = String((await receiver.line())['addresses'][0]);
    const sender = new PlainChild('bare-libp2p.ts', { nodes: 1, dial: address });
    await sender.line();
    const raw: Contestant = {
      name: 'raw',
      measure: async () => ({ 'MB/s': Number((await sender.ask({ send: pace.measureMs }))['mbPerSecond']) }),
    };
    const notes = isMeant ? [] : [`ax takes bodies of at most ${BYTES} bytes: measured with these, and the target counts as not measured`];
    const end = async (): Promise<void> => {
      sender.end();
      receiver.end();
    };
    return { contestants: [axBodies(daemons, pace), raw], notes, end };
  },
};
