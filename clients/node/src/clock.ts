/** The time, and the pauses of the client. A test replaces them to let a day pass. */
export const clock = {
  now: (): Date => new Date(),
  setTimeout: (done: () => void, ms: number): NodeJS.Timeout => setTimeout(done, ms),
};
