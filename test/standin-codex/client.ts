/**
 * A plain client of a Codex daemon's socket for tests: requests in, answers and notifications out, nothing hidden.
 *
 * Owns no rule. It says what it is told to say, so that the stand-in can be asked what no adapter would ask.
 */
import { once } from 'node:events';
import { createConnection } from 'node:net';
import { WebSocket } from 'ws';

export interface Answer {
  readonly id?: unknown;
  readonly method?: string;
  readonly params?: Record<string, unknown>;
  readonly result?: Record<string, any>; // eslint-disable-line typescript/no-explicit-any -- read field by field
  readonly error?: { readonly code: number; readonly message: string; readonly data?: unknown };
}

export class PlainClient {
  readonly heard: Answer[] = [];
  readonly closed: Promise<unknown>;
  readonly #socket: WebSocket;
  #next = 1;

  private constructor(socket: WebSocket) {
    this.#socket = socket;
    this.closed = once(socket, 'close');
    socket.on('message', (data: Buffer) => {
      this.heard.push(JSON.parse(data.toString('utf8')) as Answer);
      socket.emit('heard');
    });
  }

  /** Connects; initialized unless told otherwise. */
  static async connect(
    path: string,
    how: { readonly initialize?: false; readonly experimental?: boolean; readonly optOut?: readonly string[] } = {},
  ): Promise<PlainClient> {
    const socket = new WebSocket('ws://localhost/', { createConnection: () => createConnection({ path }), perMessageDeflate: false });
    const client = new PlainClient(socket);
    await once(socket, 'open');
    if (how.initialize === false) return client;
    await client.ask('initialize', introduction(how.experimental ?? true, how.optOut ?? []));
    client.say(JSON.stringify({ method: 'initialized' }));
    return client;
  }

  /** One request; resolves with its answer, rejects when the connection ends before. */
  async ask(method: string, params: unknown = {}): Promise<Answer> {
    const id = this.#next++;
    this.say(JSON.stringify({ id, method, params }));
    return this.until((one) => one.id === id);
  }

  async until(test: (answer: Answer) => boolean): Promise<Answer> {
    for (;;) {
      const found = this.heard.find(test);
      if (found !== undefined) return found;
      const ended = this.closed.then(() => Promise.reject(new Error('the connection ended')));
      await Promise.race([once(this.#socket, 'heard'), ended]);
    }
  }

  say(text: string | Uint8Array): void {
    this.#socket.send(text);
  }

  end(): void {
    this.#socket.terminate();
  }
}

export function introduction(experimentalApi: boolean, optOutNotificationMethods: readonly string[]): object {
  return {
    clientInfo: { name: 'ax', title: 'ax', version: '0.1.0' },
    capabilities: { experimentalApi, optOutNotificationMethods },
  };
}
