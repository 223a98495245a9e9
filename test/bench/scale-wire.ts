/**
 * A wire that counts: a TCP proxy on loopback between two hosts of scale-costs.ts.
 *
 * Owns its sockets and two counts, of both directions together. A piece is what one read gave: nearly a packet with content, as long as
 * little is under way. It changes and holds back nothing.
 */
import { createConnection, createServer, type AddressInfo, type Server, type Socket } from 'node:net';

/** Passes on to `to`, once that is known, whatever comes to the port of `listen`. */
export class Wire {
  bytes = 0;
  pieces = 0;
  #target = 0;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  constructor() {
    this.#server = createServer({ noDelay: true }, (near) => {
      const far = createConnection({ port: this.#target, host: '127.0.0.1', noDelay: true });
      for (const [from, to] of [[near, far] as const, [far, near] as const]) {
        this.#sockets.add(from);
        from.on('data', (chunk) => {
          this.bytes += chunk.length;
          this.pieces += 1;
          to.write(chunk);
        });
        from.on('error', () => to.destroy());
        from.on('close', () => {
          this.#sockets.delete(from);
          to.destroy();
        });
      }
    });
  }

  async listen(): Promise<number> {
    await new Promise<void>((resolve) => void this.#server.listen(0, '127.0.0.1', resolve));
    return (this.#server.address() as AddressInfo).port;
  }

  to(port: number): void {
    this.#target = port;
  }

  /** Ends every connection, as a network does that goes away. */
  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  close(): void {
    this.cut();
    this.#server.close();
  }
}
