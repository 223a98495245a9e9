/**
 * A slow line as a program: takes connections and passes their bytes on, each way late by a delay that wanders, in order.
 *
 * For kernels without netem. Runs in a station of its own, `node relay.ts DELAY_MS JITTER_MS ADDRESS:PORT`; prints the port it takes
 * connections on. It reads nothing into the bytes: the two ends still prove their keys to each other.
 */
import { createConnection, createServer, type AddressInfo, type Socket } from 'node:net';

const [delayMs = 0, jitterMs = 0] = process.argv.slice(2, 4).map(Number);
const [address = '', port = ''] = (process.argv[4] ?? '').split(':');

/** Passes on what comes, no piece before the one ahead of it; the end of `from` is passed on as well. */
function pass(from: Socket, to: Socket): void {
  let due = 0;
  const acts: (() => void)[] = [];
  const later = (act: () => void): void => {
    due = Math.max(due, performance.now() + delayMs + (Math.random() * 2 - 1) * jitterMs);
    acts.push(act);
    setTimeout(() => acts.shift()?.(), due - performance.now()); // timers may swap, what they do may not
  };
  from.on('data', (chunk) => later(() => to.destroyed || to.write(chunk)));
  from.on('end', () => later(() => to.end()));
  from.on('error', () => to.destroy());
  from.on('close', () => later(() => to.destroySoon()));
}

const server = createServer({ allowHalfOpen: true }, (near) => {
  const far = createConnection({ host: address, port: Number(port), allowHalfOpen: true });
  pass(near, far);
  pass(far, near);
});
server.listen(0, '0.0.0.0', () => process.stdout.write(`${(server.address() as AddressInfo).port}\n`));
