/**
 * Small clients for the systems that ax is compared with: Redis streams over one pipelined connection, and mail over one connection a sender.
 *
 * Each does the least that the protocol allows, so that the server is what is measured: commands written in one turn leave as one write, and
 * MAIL, RCPT and DATA are pipelined. An answer that is not the expected one rejects.
 */
import { createConnection, type Socket } from 'node:net';

interface Awaited {
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

async function connect(port: number): Promise<Socket> {
  const socket = createConnection({ port, host: '127.0.0.1', noDelay: true });
  await new Promise<void>((resolve, reject) => void socket.once('connect', resolve).once('error', reject));
  return socket;
}

/** Adds entries to a stream; each resolves when Redis has answered with its id, which it does after the sync. */
export class RedisClient {
  readonly #socket: Socket;
  readonly #waiting: Awaited[] = [];
  #unsent: Uint8Array[] = [];
  #rest = '';

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.setEncoding('latin1').on('data', (chunk: string) => this.#read(chunk));
    socket.on('error', (error) => this.#fail(error));
    socket.on('close', () => this.#fail(new Error('Redis closed the connection')));
  }

  static async open(port: number): Promise<RedisClient> {
    return new RedisClient(await connect(port));
  }

  /** XADD of a body. */
  add(stream: string, body: Uint8Array): Promise<void> {
    const head = `*5\r\n$4\r\nXADD\r\n$${stream.length}\r\n${stream}\r\n$1\r\n*\r\n$1\r\nb\r\n$${body.length}\r\n`;
    if (this.#unsent.length === 0) setImmediate(() => this.#flush());
    this.#unsent.push(Buffer.from(head, 'latin1'), body, CRLF);
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  close(): void {
    this.#socket.removeAllListeners('close').destroy();
  }

  #flush(): void {
    this.#socket.write(Buffer.concat(this.#unsent));
    this.#unsent = [];
  }

  /** Answers are `$LENGTH`, then the id, each on a line; an error is one line. */
  #read(chunk: string): void {
    const lines = (this.#rest + chunk).split('\r\n');
    this.#rest = lines.pop() ?? '';
    for (const line of lines) {
      if (line.startsWith('$')) continue;
      const first = this.#waiting.shift();
      if (/^\d+-\d+$/.test(line)) first?.resolve();
      else first?.reject(new Error(`Redis answered ${line}`));
    }
  }

  #fail(error: Error): void {
    for (const waiting of this.#waiting.splice(0)) waiting.reject(error);
  }
}

const CRLF = Buffer.from('\r\n');

/** Hands mail to a server, one after the other on one connection; each resolves when the server says that it is queued. */
export class MailClient {
  readonly #socket: Socket;
  #rest = '';
  readonly #lines: string[] = [];
  #wake: () => void = () => undefined;
  #failed: Error | undefined;

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.setEncoding('latin1').on('data', (chunk: string) => this.#read(chunk));
    socket.on('error', (error) => this.#fail(error));
    socket.on('close', () => this.#fail(new Error('Postfix closed the connection')));
  }

  static async open(port: number): Promise<MailClient> {
    const client = new MailClient(await connect(port));
    await client.#expect('220');
    client.#socket.write('EHLO bench.invalid\r\n');
    await client.#expect('250');
    return client;
  }

  /** One message whose text is `body`: lines of printable characters, none of which begins with a dot. */
  async send(body: string): Promise<void> {
    this.#socket.write('MAIL FROM:<a@bench.invalid>\r\nRCPT TO:<b@bench.invalid>\r\nDATA\r\n');
    await this.#expect('250');
    await this.#expect('250');
    await this.#expect('354');
    this.#socket.write(`From: a@bench.invalid\r\nTo: b@bench.invalid\r\n\r\n${body}\r\n.\r\n`);
    await this.#expect('250');
  }

  close(): void {
    this.#socket.destroy();
  }

  /** Takes one reply, of one or more lines. */
  async #expect(code: string): Promise<void> {
    for (;;) {
      const line = this.#lines.shift();
      if (line === undefined) {
        if (this.#failed !== undefined) throw this.#failed;
        await new Promise<void>((resolve) => (this.#wake = resolve));
      } else if (!line.startsWith(code)) throw new Error(`Postfix answered ${line}`);
      else if (line[3] !== '-') return;
    }
  }

  #read(chunk: string): void {
    const lines = (this.#rest + chunk).split('\r\n');
    this.#rest = lines.pop() ?? '';
    this.#lines.push(...lines);
    this.#wake();
  }

  #fail(error: Error): void {
    this.#failed ??= error;
    this.#wake();
  }
}

/** A body of so many bytes as mail: lines of 64 characters. */
export function mailBody(bytes: number): string {
  const line = `${'a'.repeat(62)}\r\n`;
  return line.repeat(Math.ceil(bytes / line.length)).slice(0, bytes);
}
